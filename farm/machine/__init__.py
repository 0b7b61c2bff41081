"""This machine: what it is (`detect`) and whether it is fit to build and use wheels (`doctor`)."""
