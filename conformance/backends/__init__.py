"""What is judged: backends by name, what they may lack, the levels of comparison, what a backend raises."""
