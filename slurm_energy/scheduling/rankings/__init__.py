"""Built-in policies, one module each; every module here is registered."""
