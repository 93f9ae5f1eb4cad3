"""What all commands share: exit statuses, words of options, files written whole or not at all, progress and colour."""
