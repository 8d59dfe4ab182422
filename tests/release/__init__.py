"""The files of a release: what they contain, and what they do in clean environments (`make test-release`)."""
