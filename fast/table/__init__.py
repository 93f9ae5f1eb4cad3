"""TAB: page tables on the host and on the device."""
