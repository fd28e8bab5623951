"""Dead letters as readers see them, their handling by operators, and bulk jobs."""
