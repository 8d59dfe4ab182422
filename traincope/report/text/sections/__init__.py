"""The sections of the text report, one module each. A section returns lines of the document and computes nothing."""
