"""What tests share: a real endpoint that can misbehave on demand, and questions about live processes."""
