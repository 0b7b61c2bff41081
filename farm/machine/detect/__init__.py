"""This machine (readings), and the wheel for it (choose)."""
