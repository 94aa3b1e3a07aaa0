"""HTTP/1.1 server and upstream pool on asyncio.Protocol; nothing outside knows it."""
