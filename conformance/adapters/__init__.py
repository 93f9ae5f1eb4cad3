"""Other packages under the names that the machines know: each module is a backend, the package installed separately."""
