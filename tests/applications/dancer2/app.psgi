# Answers with what a handler reads from a request, in Dancer2.
use Dancer2;

sub handler {
    my ($name) = @_;
    # A cookie may have several values. In a scalar context, this is the first one.
    my $cookie = cookie 'session';
    my %seen = (
        handler       => $name,
        method        => request->method,
        query         => scalar query_parameters->get('plan'),
        cookie        => $cookie ? scalar $cookie->value : undef,
        key           => scalar request->header('X-Api-Key'),
        plan          => scalar request->header('X-Plan'),
        host          => scalar request->host,
        authorization => scalar request->header('Authorization'),
    );
    content_type 'application/json';
    response_header 'x-handler' => $name;
    # JSON in ASCII. What is absent is null.
    return to_json \%seen, { ascii => 1, utf8 => 0 };
}

any '/login' => sub { handler('login') };
any qr{.*}s => sub { handler('other') };

to_app;
