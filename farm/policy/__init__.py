"""What a wheel must be like: the rules of recipes, the policy of a plan, waivers, CPU levels."""
