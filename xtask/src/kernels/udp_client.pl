# Asks 10.9.0.3:53 with a socket that is not connected, and with one that is. Both must see that address as their peer.
my $vip = pack("S n C4 x8", 2, 53, 10, 9, 0, 3);
my $shown = sub { join " ", unpack("S n C4", shift) };
$SIG{ALRM} = sub { die "no answer\n" };
alarm 60;

socket(my $socket, 2, 2, 17) or die "socket: $!";
send($socket, "one", 0, $vip) or die "sendto: $!";
my $from = recv($socket, my $text, 512, 0);
$text eq "one" or die "the answer is $text";
$shown->($from) eq $shown->($vip) or die "the answer comes from " . $shown->($from);

socket($socket, 2, 2, 17) or die "socket: $!";
connect($socket, $vip) or die "connect: $!";
send($socket, "two", 0) or die "send: $!";
recv($socket, $text, 512, 0);
$text eq "two" or die "the answer is $text";
my $peer = $shown->(getpeername($socket));
$peer eq $shown->($vip) or die "the peer is $peer";
