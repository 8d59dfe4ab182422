"""The look of text reports: lines and tables, bars, forms of numbers. No contents of a report are here."""
