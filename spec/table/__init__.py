"""TAB: page tables."""
