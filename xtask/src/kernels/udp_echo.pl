# Sends back each datagram. A socket address of IPv4: family, port, address.
socket(my $socket, 2, 2, 17) or die "socket: $!";
bind($socket, pack("S n C4 x8", 2, 53, 0, 0, 0, 0)) or die "bind: $!";
while (defined(my $from = recv($socket, my $text, 512, 0))) {
    send($socket, $text, 0, $from);
}
