"""The server: gRPC services, scheduler, recorder, tuning log. It never imports TVM."""
