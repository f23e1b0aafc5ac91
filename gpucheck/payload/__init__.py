"""Code for the other side: child processes and containers. Found by path and sent, never imported by the package."""
