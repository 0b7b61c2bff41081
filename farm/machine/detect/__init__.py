"""What this machine is (readings), and which wheel is for it (choose)."""
