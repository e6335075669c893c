"""Facts that do not change soon, for questions that need no download.

Alternatives of one value are parted by `/`, the usual one first. An empty value is one that
is disputed, shared by several or about to change, and is not asked for.
"""

# name; capital; currency; continent; main language; adjective
COUNTRIES = """
Afghanistan;Kabul;afghani;Asia;;Afghan
Albania;Tirana;lek;Europe;Albanian;Albanian
Algeria;Algiers;dinar;Africa;Arabic;Algerian
Angola;Luanda;kwanza;Africa;;Angolan
Argentina;Buenos Aires;peso;South America;Spanish;Argentine
Armenia;Yerevan;dram;;Armenian;Armenian
Australia;Canberra;dollar;Oceania/Australia;English;Australian
Austria;Vienna;euro;Europe;German;
Azerbaijan;Baku;manat;;Azerbaijani;Azerbaijani
Bangladesh;Dhaka;taka;Asia;Bengali/Bangla;Bangladeshi
Belarus;Minsk;ruble;Europe;;Belarusian
Belgium;Brussels;euro;Europe;;
Brazil;Brasilia/Brasília;real;South America;Portuguese;Brazilian
Bulgaria;Sofia;;Europe;Bulgarian;
Cambodia;Phnom Penh;riel;Asia;Khmer;Cambodian
Cameroon;Yaounde/Yaoundé;;Africa;;
Canada;Ottawa;dollar;North America;;Canadian
Chile;Santiago;peso;South America;Spanish;Chilean
China;Beijing;yuan/renminbi;Asia;Chinese/Mandarin/Mandarin Chinese;Chinese
Colombia;Bogota/Bogotá;peso;South America;Spanish;Colombian
Costa Rica;San Jose/San José;colon/colón;North America;Spanish;Costa Rican
Croatia;Zagreb;euro;Europe;Croatian;
Cuba;Havana;peso;North America;Spanish;Cuban
Czech Republic/Czechia;Prague;koruna;Europe;Czech;Czech
Denmark;Copenhagen;krone;Europe;Danish;Danish
Dominican Republic;Santo Domingo;peso;North America;Spanish;Dominican
Ecuador;Quito;;South America;Spanish;
Egypt;Cairo;pound;Africa;Arabic;Egyptian
Estonia;Tallinn;euro;Europe;Estonian;
Ethiopia;Addis Ababa;birr;Africa;;Ethiopian
Finland;Helsinki;euro;Europe;Finnish;
France;Paris;euro;Europe;French;
Georgia;Tbilisi;lari;;Georgian;Georgian
Germany;Berlin;euro;Europe;German;
Ghana;Accra;cedi;Africa;;Ghanaian
Greece;Athens;euro;Europe;Greek;
Guatemala;Guatemala City;quetzal;North America;Spanish;Guatemalan
Honduras;Tegucigalpa;lempira;North America;Spanish;Honduran
Hungary;Budapest;forint;Europe;Hungarian;Hungarian
Iceland;Reykjavik/Reykjavík;krona/króna;Europe;Icelandic;Icelandic
India;New Delhi;rupee;Asia;;Indian
Indonesia;;rupiah;Asia;Indonesian;Indonesian
Iran;Tehran;rial;Asia;Persian/Farsi;Iranian
Iraq;Baghdad;dinar;Asia;Arabic;Iraqi
Ireland;Dublin;euro;Europe;English;
Italy;Rome;euro;Europe;Italian;
Jamaica;Kingston;dollar;North America;;Jamaican
Japan;Tokyo;yen;Asia;Japanese;Japanese
Jordan;Amman;dinar;Asia;Arabic;Jordanian
Kazakhstan;Astana;tenge;;;Kazakhstani
Kenya;Nairobi;shilling;Africa;;Kenyan
Kuwait;Kuwait City;dinar;Asia;Arabic;Kuwaiti
Kyrgyzstan;Bishkek;som;Asia;;Kyrgyzstani
Laos;Vientiane;kip;Asia;Lao;Lao
Latvia;Riga;euro;Europe;Latvian;
Lebanon;Beirut;pound;Asia;Arabic;Lebanese
Libya;Tripoli;dinar;Africa;Arabic;Libyan
Lithuania;Vilnius;euro;Europe;Lithuanian;
Madagascar;Antananarivo;ariary;Africa;Malagasy;Malagasy
Malawi;Lilongwe;kwacha;Africa;;Malawian
Malaysia;Kuala Lumpur;ringgit;Asia;Malay;Malaysian
Malta;Valletta;euro;Europe;Maltese;
Mexico;Mexico City;peso;North America;Spanish;Mexican
Moldova;Chisinau/Chișinău;leu;Europe;Romanian;Moldovan
Mongolia;Ulaanbaatar/Ulan Bator;tugrik/togrog/tögrög;Asia;Mongolian;Mongolian
Morocco;Rabat;dirham;Africa;Arabic;Moroccan
Mozambique;Maputo;metical;Africa;;Mozambican
Myanmar/Burma;Naypyidaw;kyat;Asia;Burmese;Myanmar
Nepal;Kathmandu;rupee;Asia;Nepali;Nepalese
Netherlands;Amsterdam;euro;Europe;Dutch;
New Zealand;Wellington;dollar;Oceania;English;New Zealand
Nicaragua;Managua;cordoba/córdoba;North America;Spanish;Nicaraguan
Nigeria;Abuja;naira;Africa;;Nigerian
North Korea;Pyongyang;won;Asia;Korean;North Korean
Norway;Oslo;krone;Europe;Norwegian;Norwegian
Oman;Muscat;rial;Asia;Arabic;Omani
Pakistan;Islamabad;rupee;Asia;;Pakistani
Panama;Panama City;balboa;North America;Spanish;Panamanian
Paraguay;Asuncion/Asunción;guarani/guaraní;South America;;Paraguayan
Peru;Lima;sol;South America;Spanish;Peruvian
Philippines;Manila;peso;Asia;;Philippine
Poland;Warsaw;zloty/złoty;Europe;Polish;Polish
Portugal;Lisbon;euro;Europe;Portuguese;
Romania;Bucharest;leu;Europe;Romanian;Romanian
Russia;Moscow;ruble/rouble;;Russian;Russian
Saudi Arabia;Riyadh;riyal;Asia;Arabic;Saudi
Senegal;Dakar;;Africa;;
Serbia;Belgrade;dinar;Europe;Serbian;Serbian
Slovakia;Bratislava;euro;Europe;Slovak;
Slovenia;Ljubljana;euro;Europe;Slovene/Slovenian;
South Korea;Seoul;won;Asia;Korean;South Korean
Spain;Madrid;euro;Europe;Spanish;
Sudan;Khartoum;pound;Africa;Arabic;Sudanese
Sweden;Stockholm;krona;Europe;Swedish;Swedish
Switzerland;Bern/Berne;franc;Europe;;Swiss
Syria;Damascus;pound;Asia;Arabic;Syrian
Tanzania;Dodoma;shilling;Africa;;Tanzanian
Thailand;Bangkok;baht;Asia;Thai;Thai
Tunisia;Tunis;dinar;Africa;Arabic;Tunisian
Turkey/Türkiye;Ankara;lira;;Turkish;Turkish
Turkmenistan;Ashgabat;manat;Asia;Turkmen;Turkmenistani
Uganda;Kampala;shilling;Africa;;Ugandan
Ukraine;Kyiv/Kiev;hryvnia;Europe;Ukrainian;Ukrainian
United Kingdom/UK/Great Britain;London;pound/pound sterling;Europe;English;British
United States/USA/United States of America;Washington/Washington DC;dollar;North America;English;US
Uruguay;Montevideo;peso;South America;Spanish;Uruguayan
Uzbekistan;Tashkent;som/sum;Asia;Uzbek;Uzbekistani
Venezuela;Caracas;bolivar/bolívar;South America;Spanish;Venezuelan
Vietnam;Hanoi;dong;Asia;Vietnamese;Vietnamese
Zambia;Lusaka;kwacha;Africa;;Zambian
"""

# name;symbol, from atomic number 1 on
ELEMENTS = """
hydrogen;H
helium;He
lithium;Li
beryllium;Be
boron;B
carbon;C
nitrogen;N
oxygen;O
fluorine;F
neon;Ne
sodium;Na
magnesium;Mg
aluminium/aluminum;Al
silicon;Si
phosphorus;P
sulfur/sulphur;S
chlorine;Cl
argon;Ar
potassium;K
calcium;Ca
scandium;Sc
titanium;Ti
vanadium;V
chromium;Cr
manganese;Mn
iron;Fe
cobalt;Co
nickel;Ni
copper;Cu
zinc;Zn
gallium;Ga
germanium;Ge
arsenic;As
selenium;Se
bromine;Br
krypton;Kr
rubidium;Rb
strontium;Sr
yttrium;Y
zirconium;Zr
niobium;Nb
molybdenum;Mo
technetium;Tc
ruthenium;Ru
rhodium;Rh
palladium;Pd
silver;Ag
cadmium;Cd
indium;In
tin;Sn
antimony;Sb
tellurium;Te
iodine;I
xenon;Xe
caesium/cesium;Cs
barium;Ba
lanthanum;La
cerium;Ce
praseodymium;Pr
neodymium;Nd
promethium;Pm
samarium;Sm
europium;Eu
gadolinium;Gd
terbium;Tb
dysprosium;Dy
holmium;Ho
erbium;Er
thulium;Tm
ytterbium;Yb
lutetium;Lu
hafnium;Hf
tantalum;Ta
tungsten;W
rhenium;Re
osmium;Os
iridium;Ir
platinum;Pt
gold;Au
mercury;Hg
thallium;Tl
lead;Pb
bismuth;Bi
polonium;Po
astatine;At
radon;Rn
francium;Fr
radium;Ra
actinium;Ac
thorium;Th
protactinium;Pa
uranium;U
"""

NOBLE_GASES = (2, 10, 18, 36, 54, 86)  # atomic numbers that end the periods 1 to 6

# name;country where it meets the sea
RIVERS = """
Amazon;Brazil
Chao Phraya;Thailand
Daugava;Latvia
Dnieper;Ukraine
Ebro;Spain
Elbe;Germany
Fraser;Canada
Ganges;Bangladesh
Glomma;Norway
Godavari;India
Guadalquivir;Spain
Hudson;United States
Indus;Pakistan
Irrawaddy;Myanmar
Kemijoki;Finland
Krishna;India
Lena;Russia
Limpopo;Mozambique
Loire;France
Mackenzie;Canada
Magdalena;Colombia
Mekong;Vietnam
Mississippi;United States
Murray;Australia
Niger;Nigeria
Nile;Egypt
Orinoco;Venezuela
Po;Italy
Rhine;Netherlands
Rufiji;Tanzania
Seine;France
Shannon;Ireland
Shinano;Japan
Tagus;Portugal
Tana;Kenya
Thames;United Kingdom
Tiber;Italy
Vardar;Greece
Vistula;Poland
Volga;Russia
Volta;Ghana
Waikato;New Zealand
Weser;Germany
Yangtze;China
Yenisei;Russia
Zambezi;Mozambique
"""

# name;country where it stands
SIGHTS = """
Acropolis;Greece
Aconcagua;Argentina
Alhambra;Spain
Angel Falls;Venezuela
Angkor Wat;Cambodia
Atomium;Belgium
Baalbek;Lebanon
Big Ben;United Kingdom
Borobudur;Indonesia
Bran Castle;Romania
Brandenburg Gate;Germany
Charles Bridge;Czech Republic
Chichen Itza;Mexico
Christ the Redeemer;Brazil
CN Tower;Canada
Colosseum;Italy
Eiffel Tower;France
Forbidden City;China
Galapagos Islands;Ecuador
Ha Long Bay;Vietnam
Hagia Sophia;Turkey
Lake Bled;Slovenia
Lalibela;Ethiopia
Leptis Magna;Libya
Louvre;France
Machu Picchu;Peru
Mount Cook;New Zealand
Mount Fuji;Japan
Mount Kilimanjaro;Tanzania
Nazca Lines;Peru
Neuschwanstein;Germany
Palmyra;Syria
Persepolis;Iran
Petra;Jordan
Petronas Towers;Malaysia
Registan;Uzbekistan
Rila Monastery;Bulgaria
Sagrada Familia;Spain
Schonbrunn;Austria
Shwedagon Pagoda;Myanmar
Stonehenge;United Kingdom
Taj Mahal;India
Teotihuacan;Mexico
Tikal;Guatemala
Uluru;Australia
Wat Arun;Thailand
Wawel Castle;Poland
"""

# name;element that is won from it
MINERALS = """
argentite;silver
barite;barium
bauxite;aluminium
beryl;beryllium
bismuthinite;bismuth
cassiterite;tin
celestine;strontium
chromite;chromium
cinnabar;mercury
cobaltite;cobalt
galena;lead
greenockite;cadmium
hematite;iron
magnesite;magnesium
malachite;copper
molybdenite;molybdenum
pentlandite;nickel
pyrolusite;manganese
realgar;arsenic
rutile;titanium
sphalerite;zinc
spodumene;lithium
stibnite;antimony
tantalite;tantalum
uraninite;uranium
vanadinite;vanadium
wolframite;tungsten
zircon;zirconium
"""
