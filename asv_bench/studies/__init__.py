"""Built-in studies: measurements of distributed training on data that ships with scikit-learn, one command each."""
