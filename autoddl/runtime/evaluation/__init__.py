"""Models in evaluation: their results on batches of any size, their scores on data sets."""
