"""What a client of plain HTTP needs not do."""

import ssl

# httpx reads all certificates that the machine trusts for each client that it makes, also of
# http://: thirty milliseconds of every test that asks a server. It is told here to trust none.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
