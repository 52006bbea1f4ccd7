"""Built-in scheduling policies, one module each. Importing this package registers all of them."""
