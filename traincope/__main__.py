"""`python -m traincope`, and `torchrun -m traincope preflight CONFIG.toml`: the command line."""

from traincope.cli.main import main

if __name__ == "__main__":
    main()
