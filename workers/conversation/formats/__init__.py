"""How a model writes its answers: found out from its template, and read as they come."""
