#!/bin/sh
# Installs the tools that fathom is compared with. They come from Debian; netperf stands in its non-free component, which is
# read from a copy of this machine's own sources for this one installation and enabled nowhere. Debian's JMeter is older than ten
# years, so Maven brings the parts of a current one.
set -eu

apt-get update
apt-get install --yes --no-install-recommends \
    apache2-utils default-jre-headless golang-go hey hping3 iperf3 libpcap-dev maven netsniff-ng nghttp2-client nginx-light openssl sockperf \
    strace tcpdump tcpreplay unzip wrk

# JMeter wants its own file in bin, its parts in lib/ext and all others in lib; what it reads at its start is in a part of its own.
install_jmeter() {
    home=/opt/jmeter
    rm -rf "$home" &&
        mkdir -p "$home/bin" "$home/lib/ext" &&
        mvn --quiet --batch-mode --file "$(dirname "$0")/jmeter/pom.xml" dependency:copy-dependencies -DoutputDirectory="$home/lib" &&
        unzip -qo "$home"/lib/ApacheJMeter_config-*.jar 'bin/*' -d "$home" &&
        rm "$home"/lib/ApacheJMeter_config-*.jar &&
        mv "$home"/lib/ApacheJMeter-*.jar "$home/bin/ApacheJMeter.jar" &&
        mv "$home"/lib/ApacheJMeter_*.jar "$home/lib/ext/" &&
        # The heap is that of its own start script.
        printf '#!/bin/sh\nexec java -Xms1g -Xmx1g -jar %s/bin/ApacheJMeter.jar "$@"\n' "$home" >/usr/local/bin/jmeter &&
        chmod 755 /usr/local/bin/jmeter
}
if ! { command -v jmeter >/dev/null || install_jmeter; }; then
    echo "JMeter cannot be had: its row will say so" >&2
fi

# Debian has no GoReplay.
if ! { command -v goreplay >/dev/null || GOBIN=/usr/local/bin go install github.com/buger/goreplay@v1.3.2; }; then
    echo "GoReplay cannot be had: its row will say so" >&2
fi

command -v netperf >/dev/null && exit 0
copy=$(mktemp --directory)
trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/parts" "$copy/lists/partial"
for file in /etc/apt/sources.list.d/*.sources; do
    [ -e "$file" ] && sed 's/^Components:.*/Components: main non-free/' "$file" >"$copy/parts/$(basename "$file")"
done
[ -e /etc/apt/sources.list ] && sed -n 's/^\(deb .* main\).*/\1 non-free/p' /etc/apt/sources.list >"$copy/parts/own.list"
with_non_free() {
    apt-get -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$copy/parts" -o Dir::State::lists="$copy/lists" "$@"
}
if ! { with_non_free update && with_non_free install --yes --no-install-recommends netperf; }; then
    echo "netperf cannot be had: its rows will say so" >&2
fi
