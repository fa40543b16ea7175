"""One file for each transport. :mod:`pytest_ddl.hosts.registry` lists them."""
