"""The command line of tfdp; nothing here imports TensorFlow or Keras in the process of `tfdp run`."""
