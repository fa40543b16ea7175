"""One file for each transport. :mod:`pytest_ddl.hosts.transports.registry` lists them."""
