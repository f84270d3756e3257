"""A broker against a model of what its clients may, must and must not see."""
