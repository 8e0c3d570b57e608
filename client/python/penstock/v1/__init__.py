"""The messages of penstock.v1, generated from the .proto files by generate_messages.sh."""
