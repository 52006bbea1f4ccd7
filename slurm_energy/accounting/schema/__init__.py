"""Tables of the database, and the steps between versions of its schema."""
