"""What jobs took of the fleet, and what that costs."""
