"""The `traincope` command: `commands` (one module each), `plan` (its questions), `launch` (starting trainings).

Only this package prints and exits. No analysis and no report is here.
"""
