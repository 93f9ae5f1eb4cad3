"""MAN-12, SWAP-2: events as documents, the follower of events, and exported prefixes."""
