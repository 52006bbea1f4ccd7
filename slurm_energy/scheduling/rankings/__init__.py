"""The built-in policies, a file each; a policy is registered by being here."""
