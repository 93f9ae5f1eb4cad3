"""TAB: page tables: which page holds which tokens of which row, on the host and on the device."""
