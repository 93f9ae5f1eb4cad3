"""MAN-12, SWAP-2: events as documents, whoever follows them, and exported prefixes."""
