"""Request traces served through a backend as an engine would, and what the best policy could have hit."""
