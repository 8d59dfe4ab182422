"""The subcommands, one module each, listed in `main.COMMANDS`. What several commands share is in `cli` or `launch`."""
