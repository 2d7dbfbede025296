"""The coefficient controllers and the drop-in controller, held to goldens, laws and twins."""
