"""For our own tests only: pytest's own test bench. The plugin under test comes in through its entry point."""

pytest_plugins = ["pytester"]
