"""The admin API's messages, shared by sbproxy.admin and sbproxy.client."""
