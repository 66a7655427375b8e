"""What a terminal shows: tables, JSON, errors in one line."""
