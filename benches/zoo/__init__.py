"""Every environment that installs from the registry, walked with default arguments."""
