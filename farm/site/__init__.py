"""The static site beside the index: pick a wheel, see the farm. Data in, files out; it builds and publishes nothing."""
