"""The parameters of public classes and functions, and the values with which properties of the suite vary them."""
