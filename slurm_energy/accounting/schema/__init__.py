"""Tables of the database, and the migrations between the versions of its schema."""
