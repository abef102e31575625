"""The generated contract, kvpilot.v1."""
