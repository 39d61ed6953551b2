"""`python -m bench`. Worker processes import this file again under another name, so it must stay empty for them."""

if __name__ == "__main__":
    from bench.cli import main

    main()
